"""The posterior of a pair: drawn, weighed, summarized, stored, and given further evidence."""
