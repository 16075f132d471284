"""An itemised ledger of the memory that one rank needs. Needs no torch."""
