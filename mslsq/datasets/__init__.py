"""Problems with known answers: NIST's certified regressions (:mod:`.nist`) and the classics (:mod:`.classic`)."""
