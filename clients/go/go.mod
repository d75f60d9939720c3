module github.com/kazahana/kazahana/clients/go

go 1.22
