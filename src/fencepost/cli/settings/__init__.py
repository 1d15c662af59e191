"""Settings as they are written: in ``fencepost.toml``, in the environment, as flags.

`table` lists every setting once; everything else (reading, showing, flags, documentation) follows from it.
"""

from fencepost.cli.settings.loading import InvalidSettings, config_path, load_settings
from fencepost.cli.settings.table import BY_NAME, SETTINGS, Setting

__all__ = ["BY_NAME", "SETTINGS", "InvalidSettings", "Setting", "config_path", "load_settings"]
