#pragma once

#include "vlmtrain/io/atomic.h"
