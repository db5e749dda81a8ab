module github.com/fairlead/fairlead/tools/prometheus

go 1.26.0

require github.com/prometheus/prometheus v0.309.1
