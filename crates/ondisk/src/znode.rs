//! The attributes of ZPL versions before 5
