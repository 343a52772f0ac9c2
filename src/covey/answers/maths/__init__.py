"""Whether two mathematical answers agree: reading, exact values within a budget, sets, equations, units."""
