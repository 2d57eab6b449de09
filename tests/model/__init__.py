"""Real models behind vLLM on a CPU: do users get the tokens that they would get without a connector?

`fetch` brings what is needed, `run` runs tests and programs with it. vLLM's own Python (`shelf.RELEASE`) runs over the compiled
kernels of an older CPU build (`shelf.KERNELS`), because no CPU build of that release exists; when one does, the overlay goes.
"""
