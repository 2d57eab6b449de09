# What the offload scheduler calls, where it is compiled. The class itself stays one of Python.
cimport blocklife.ledger._edge as edge
