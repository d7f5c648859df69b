--- The rank's end of specs that check many cases of spec.support.gdn_layer in one run.
return function(comm, p)
    return require("spec.support.gdn_layer").check(comm._ptr, p.cases, p.bound)
end
