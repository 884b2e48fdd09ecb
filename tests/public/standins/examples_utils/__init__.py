"""Takes the place of Graphcore's examples_utils: what training programs use of it."""

from pathlib import Path


def load_lib(_source, **_options):
    """Compiles a custom operator for an IPU; `popdist_torch` has host functions in their place."""


def parse_yaml_config(args, parser):
    """Reads the configuration that ``--config`` names; words of the command line come first."""
    import sys

    import yaml

    if not getattr(args, "config", None):
        return args
    path = Path(getattr(args, "config_path", None) or Path(sys.argv[0]).parent / "configs.yml")
    parser.set_defaults(**yaml.safe_load(path.read_text())[args.config])
    return parser.parse_args()
