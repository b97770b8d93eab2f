"""The module that verl imports in every process, through the entry point ``verl.plugins``.

verl swallows the exception of a plug-in, and the job then ends minutes later at an unknown loss:
here it is logged at once.
"""

import logging

try:
    from trustclip.engines.verl import loss as loss
except Exception as error:
    logging.getLogger(__name__).error(
        "trustclip's policy losses could not be registered with verl: %r", error
    )
    raise
