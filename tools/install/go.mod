module github.com/fairlead/fairlead/tools/install

go 1.26.0
