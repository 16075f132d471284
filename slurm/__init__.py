"""The batch scripts; `megaxf submit` fills them in."""
