"""The toy engine and its replays."""
