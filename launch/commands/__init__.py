"""The verbs of the megaxf command, one file each."""
