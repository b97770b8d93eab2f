"""The paper's tables: as printed, and audited."""
