"""What blocklife knows of SGLang: a watch over its hierarchical cache, and a linker that keeps its host memory.

Nothing imports SGLang but the plug-in of the watch, and the linker when it is used.
"""
