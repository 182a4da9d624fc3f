#pragma once
#include "vlmtrain/text/read_tokenizer.h"
