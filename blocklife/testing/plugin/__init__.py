"""What pytest gets when blocklife is installed: fixtures, scenario files as tests, and a report of what was covered."""
