#pragma once

#include "vlmtrain/base/error.h"
