"""Which sample of which source comes when: arithmetic on the position, nothing stored."""
