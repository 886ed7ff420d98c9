"""Problems that ship as data; `StemHandler.samples` names the files."""
