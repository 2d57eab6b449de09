"""Test tools, for engines that embed blocklife and for blocklife itself: exploration, scenarios, mutants, fake devices."""
