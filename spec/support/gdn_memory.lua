--- The rank's end of specs about memory: what a function of spec.support.gdn_layer says.
return function(comm, p)
    return (require("spec.support.gdn_layer")[p.ask](comm._ptr, p))
end
