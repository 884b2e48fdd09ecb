"""Enables the SDK's names as the file above this folder does, with TensorFlow 1's interface."""

with open(__file__.replace("/version1/", "/"), encoding="utf-8") as _file:  # noqa: PTH123 - as there
    exec(compile(_file.read(), __file__, "exec"))  # noqa: S102 - our own file
