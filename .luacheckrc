std = "luajit"
max_line_length = 100
cache = false
files["spec"] = { std = "luajit+busted" }
