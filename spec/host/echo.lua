--- A rank that returns its payload.
return function(_, payload)
    return payload
end
