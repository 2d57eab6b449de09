# What the ledger calls, where it is compiled. The class itself stays one of Python, which users can look into and patch.
cimport blocklife.core._couplings as couplings
cimport blocklife.core._moves as moves
cimport blocklife.core._plans as plans
cimport blocklife.core._verbs as verbs
cimport blocklife.ledger._edge as edge
from blocklife.core._moves cimport ask_job, fire_request
