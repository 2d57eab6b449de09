"""What blocklife knows of SGLang: the watch over its hierarchical cache. Nothing here imports SGLang but the plug-in."""
