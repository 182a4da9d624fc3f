#pragma once

#include "vlmtrain/io/conversation.h"
