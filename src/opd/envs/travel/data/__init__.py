"""Planning tasks: generated ones of graded difficulty over the tool database, and DeepPlanning's published queries."""
