#pragma once

#include "vlmtrain/base/text_format.h"
