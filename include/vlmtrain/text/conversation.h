#pragma once
#include "vlmtrain/text/chat_template.h"
