"""What verl imports by itself, in every process, through the entry point ``verl.plugins``.

verl swallows the exception of a plug-in, and the job then ends minutes later at an unknown loss:
here it is said at once.
"""

import logging

try:
    from trustclip.engines import verl as verl
except Exception as error:
    logging.getLogger(__name__).error("trustclip's policy losses are not in verl: %r", error)
    raise
