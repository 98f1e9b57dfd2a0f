"""The benchmark's scores of a travel plan: its form, the rules of the eight commonsense dimensions, the composite score."""
