DROP TABLE {partition}
