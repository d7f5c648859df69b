--- A rank that breaks the rule that it returns a string.
return function()
    return 42
end
