"""The laboratory of trustclip: very small policies on which constraints can be compared exactly.

Rooms: ``stack`` (many seeds at once), ``arena``, ``theory``, ``tabular``, ``control``, ``paper``
and ``bench``. Nothing of trustclip imports it; its commands are those of `trustclip_lab.cli`.
"""

__version__ = "0.3.0"
