namespace smartkv {}
