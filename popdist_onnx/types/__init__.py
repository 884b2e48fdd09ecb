"""Plain types of the PopART API: tensors, options, data flow, enumerations."""
