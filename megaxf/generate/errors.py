"""What can be wrong with a request to generate."""


class GenerateError(ValueError):
    """A setting has no meaning, or a prompt does not fit into the model."""

    user_fault = True
