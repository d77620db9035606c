"""What holds for all tests."""

from hypothesis import settings

# How long an example takes says how busy the machine is: nothing here is judged by it.
settings.register_profile("piper", deadline=None)
settings.load_profile("piper")
