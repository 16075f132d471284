"""What can be wrong with a checkpoint."""


class CheckpointError(ValueError):
    """A checkpoint cannot be saved, found or loaded; the message names the file or tensor and says what to do."""

    user_fault = True
    """Printed by the command line without a traceback."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint was complete and no longer is: a file is gone, cut or altered. An earlier one may be sound."""
