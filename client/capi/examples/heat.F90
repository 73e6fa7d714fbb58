! A simulation that learns while it runs, in Fortran: the same program as heat.c, where it is
! explained, and the same numbers. Cells are addressed as there, by one index from 0. With -DHEAT_MPI
! the rank is MPI's and the edges go by MPI_Sendrecv, as there.
!
!   gfortran -O2 -o heat tidewater.f90 heat.F90 $(pkg-config --libs tidewater)
!   tidewater run --servers 2 --workers 2 -- ./heat
program heat
    use tidewater
    use, intrinsic :: iso_fortran_env, only: error_unit
#ifdef HEAT_MPI
    use mpi_f08
#endif
    implicit none

    integer(int64), parameter :: n = 64, wide = n + 2, steps = 600, bins = 8
    integer, parameter :: rollout_steps = 20
    real(real64), parameter :: conductivity = 0.2_real64

    type(c_ptr) :: session = c_null_ptr
    integer(int64) :: model, edges, log, histogram
    integer(int64) :: rank, workers, first, rows, seed, t
    real(real64), allocatable :: now(:), next(:)
    real(real64) :: weights(9), gradient(9), seen(2) ! loss and heat

#ifdef HEAT_MPI
    call MPI_Init()
#endif
    call connect_job()
    call create_tables()
    first = rank*n/workers
    rows = (rank + 1)*n/workers - first
    allocate (now(0:(rows + 2)*wide - 1), next(0:(rows + 2)*wide - 1))
    now = 0
    next = 0
    seed = 1
    do t = 0, steps - 1
        call must(tw_pull_range(session, model, 0_int64, weights))
        call neighbours()
        call light_cells()
        call step()
        call push()
        call must(tw_tick(session, 0))
    end do
    call count_cells()
    call must(tw_barrier(session, tw_text("counted"), 30.0_c_double))
    if (rank == 0) call report()
    call must(tw_finish(session))
    call must(tw_session_free(session))
#ifdef HEAT_MPI
    call MPI_Finalize()
#endif

contains

    ! Ends the program when a call failed, and with it the job.
    subroutine must(status)
        integer(c_int), intent(in) :: status
        character(len=:), allocatable :: why
        integer(c_int) :: told
        if (status == TW_OK) return
        why = tw_last_error()
        write (error_unit, '(a)') "heat: "//why
        told = tw_fail(session, tw_text(why)) ! so that the others hear of it at once
#ifdef HEAT_MPI
        call MPI_Abort(MPI_COMM_WORLD, 1)
#endif
        error stop 1
    end subroutine

    subroutine connect_job()
        type(tw_session_options) :: options
        type(tw_session_info) :: me
#ifdef HEAT_MPI
        integer :: mine, all
        call MPI_Comm_rank(MPI_COMM_WORLD, mine)
        call MPI_Comm_size(MPI_COMM_WORLD, all)
        options%has_rank = 1
        options%rank = mine
        options%workers = all
#endif
        options%sync = TW_BSP
        call must(tw_session_open(options, session))
        call must(tw_session_describe(session, me))
        rank = me%rank
        workers = me%workers
    end subroutine

    subroutine create_tables()
        model = clocked("model", TW_RANGE, 1_int64, 9_int64)
        edges = clocked("edges", TW_ROWS, 2*workers, n)
        log = clocked("log", TW_ROWS, steps, 2_int64)
        histogram = created("histogram", TW_SPARSE, TW_I64, 0_int64, 1_int64, TW_IMMEDIATE)
    end subroutine

    function clocked(name, kind, rows, cols) result(table)
        character(len=*), intent(in) :: name
        integer(c_int), intent(in) :: kind
        integer(int64), intent(in) :: rows, cols
        integer(int64) :: table
        table = created(name, kind, TW_F64, rows, cols, TW_CLOCK_SUM)
    end function

    function created(name, kind, dtype, rows, cols, effect) result(table)
        character(len=*), intent(in) :: name
        integer(c_int), intent(in) :: kind, dtype, effect
        integer(int64), intent(in) :: rows, cols
        integer(int64) :: table
        type(tw_table_options) :: options
        character(len=:, kind=c_char), allocatable, target :: c_name
        c_name = tw_text(name)
        options%name = c_loc(c_name)
        options%kind = kind
        options%dtype = dtype
        options%rows = rows
        options%cols = int(cols, int32)
        options%effect = effect
        if (kind == TW_RANGE) then
            options%optimizer = TW_ADAGRAD
            options%hyper(1:2) = [0.05_real64, 1e-10_real64]
        end if
        call must(tw_table_create(session, options, table))
    end function

    ! Fetches the rows next to the strip.
    subroutine neighbours()
        integer(int64) :: at
#ifdef HEAT_MPI
        integer(int64) :: top, bottom
        integer :: up, down, cells
        cells = int(n)
        up = merge(int(rank) - 1, MPI_PROC_NULL, rank > 0)
        down = merge(int(rank) + 1, MPI_PROC_NULL, rank + 1 < workers)
        top = wide + 1
        bottom = rows*wide + 1
        at = bottom + wide
        call MPI_Sendrecv(now(top:top + n - 1), cells, MPI_DOUBLE_PRECISION, up, 0, now(at:at + n - 1), &
            cells, MPI_DOUBLE_PRECISION, down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
        call MPI_Sendrecv(now(bottom:bottom + n - 1), cells, MPI_DOUBLE_PRECISION, down, 1, now(1:n), &
            cells, MPI_DOUBLE_PRECISION, up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
#else
        if (rank > 0) call must(tw_pull_rows(session, edges, [2*rank - 1], now(1:n)))
        at = (rows + 1)*wide + 1
        if (rank + 1 < workers) then
            call must(tw_pull_rows(session, edges, [2*rank + 2], now(at:at + n - 1)))
        end if
#endif
    end subroutine

    ! Lights two cells of the plate, the same ones on every worker.
    subroutine light_cells()
        integer(int64) :: cell, row, at
        integer :: i
        do i = 1, 2
            seed = mod(seed*1103515245_int64 + 12345_int64, 2_int64**31)
            cell = mod(seed/1024, n*n)
            row = cell/n
            if (row + 1 >= first .and. row <= first + rows) then
                at = (row + 1 - first)*wide + 1 + mod(cell, n)
                now(at) = now(at) + 1
            end if
        end do
    end subroutine

    ! A cell's surroundings, row by row; the cell is in the middle.
    pure function look_around(field, at) result(x)
        real(real64), intent(in) :: field(0:)
        integer(int64), intent(in) :: at
        real(real64) :: x(9)
        x(1:3) = field(at - wide - 1:at - wide + 1)
        x(4:6) = field(at - 1:at + 1)
        x(7:9) = field(at + wide - 1:at + wide + 1)
    end function

    pure real(real64) function conduct(x)
        real(real64), intent(in) :: x(9)
        conduct = x(5) + conductivity*(x(2) + x(4) + x(6) + x(8) - 4*x(5))
    end function

    pure real(real64) function predict(weights, x)
        real(real64), intent(in) :: weights(9), x(9)
        integer :: i
        predict = 0
        do i = 1, 9
            predict = predict + weights(i)*x(i)
        end do
    end function

    ! One step of the equation, and what the surrogate could learn from it.
    subroutine step()
        integer(int64) :: row, column, at
        real(real64) :: x(9), error, cells
        real(real64), allocatable :: was(:)
        gradient = 0
        seen = 0
        cells = real(n*n, real64)
        do row = 1, rows
            do column = 1, n
                at = row*wide + column
                x = look_around(now, at)
                next(at) = conduct(x)
                error = predict(weights, x) - next(at)
                gradient = gradient + error*x/cells
                seen(1) = seen(1) + error*error/cells
                seen(2) = seen(2) + next(at)
            end do
        end do
        call move_alloc(now, was)
        call move_alloc(next, now)
        call move_alloc(was, next)
    end subroutine

    subroutine push()
        integer(int64) :: learnt, logged, edged, top, bottom
        top = wide + 1
        bottom = rows*wide + 1
        call must(tw_push_range(session, model, 0_int64, gradient, TW_GRADIENT, learnt))
        call must(tw_push_rows(session, log, [t], seen, TW_SUM, logged))
        call must(tw_push_rows(session, edges, [2*rank, 2*rank + 1], &
            [now(top:top + n - 1), now(bottom:bottom + n - 1)], TW_ASSIGN, edged))
        call must(tw_push_wait(session, learnt, 0.0_c_double))
        call must(tw_push_wait(session, logged, 0.0_c_double))
        call must(tw_push_wait(session, edged, 0.0_c_double))
    end subroutine

    ! Counts the strip's cells by temperature.
    subroutine count_cells()
        integer(int64) :: keys(rows*n), ones(rows*n), row, column, counted
        ones = 1
        do row = 1, rows
            do column = 1, n
                keys((row - 1)*n + column) = min(int(now(row*wide + column)*16, int64), bins - 1)
            end do
        end do
        call must(tw_push_rows(session, histogram, keys, ones, TW_SUM, counted))
        call must(tw_push_wait(session, counted, 0.0_c_double))
    end subroutine

    ! What the job learnt, in lines of a name and a number.
    subroutine report()
        real(real64) :: logged(4)
        integer(int64) :: counts(bins), bin
        integer :: i
        call must(tw_pull_range(session, model, 0_int64, weights))
        call must(tw_pull_rows(session, log, [0_int64, steps - 1], logged))
        call must(tw_pull_rows(session, histogram, [(bin, bin=0, bins - 1)], counts))
        print '(a, es20.12e2)', "loss.first", logged(1)
        print '(a, es20.12e2)', "loss.last", logged(3)
        print '(a, es20.12e2)', "heat.last", logged(4)
        do i = 1, 9
            print '(a, i0, es20.12e2)', "weight.", i - 1, weights(i)
        end do
        print '(a, es20.12e2)', "rollout.error", rollout()
        do i = 1, int(bins)
            print '(a, i0, 1x, i0)', "cells.", i - 1, counts(i)
        end do
    end subroutine

    ! Solver and surrogate, side by side from a smooth hill on: their largest difference.
    real(real64) function rollout()
        real(real64) :: solved(0:wide*wide - 1), learnt(0:wide*wide - 1)
        real(real64) :: was_solved(0:wide*wide - 1), was_learnt(0:wide*wide - 1), x, y
        integer(int64) :: row, column, at
        integer :: i
        solved = 0
        do row = 1, n
            do column = 1, n
                y = real(row, real64)/(n + 1)
                x = real(column, real64)/(n + 1)
                solved(row*wide + column) = 16*x*(1 - x)*y*(1 - y)
            end do
        end do
        learnt = solved
        do i = 1, rollout_steps
            was_solved = solved
            was_learnt = learnt
            do row = 1, n
                do column = 1, n
                    at = row*wide + column
                    solved(at) = conduct(look_around(was_solved, at))
                    learnt(at) = predict(weights, look_around(was_learnt, at))
                end do
            end do
        end do
        rollout = maxval(abs(solved - learnt))
    end function

end program heat
