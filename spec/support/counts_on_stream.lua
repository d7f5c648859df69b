--- A module as none of ours may be, for spec/lua/modules_spec.lua: it counts on another to have
-- loaded what it uses.
return assert(package.loaded["cplab.stream"], "nobody has loaded cplab.stream").thd
