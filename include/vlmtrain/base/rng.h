#pragma once

#include "vlmtrain/base/random.h"
