"""Problems that ship as data; `workers.handlers.math.data` reads them."""
