"""Distribution strategies over the host network, under any module path of the published tree."""
