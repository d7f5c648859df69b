-- The text of the error that a call must raise, without the place in front.
return function(f, ...)
    local ok, text = pcall(f, ...)
    assert(not ok, "no error was raised")
    return (tostring(text):gsub("^[^:]+:%d+: ", ""))
end
