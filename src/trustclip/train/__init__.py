"""Fine-tuning, reinforcement learning and evaluation from one file."""
