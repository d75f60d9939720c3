package postgres

const ListSQL = listSQL
